final class Add {
    static int add(int a, int b) {
        return a - b;
    }
}
