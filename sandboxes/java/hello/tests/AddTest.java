public final class AddTest {
    public void testAdds() {
        check(5, Add.add(2, 3));
    }

    public void testAddsNothing() {
        check(2, Add.add(2, 0));
    }

    private static void check(int expected, int got) {
        if (got != expected) {
            throw new AssertionError("expected " + expected + ", got " + got);
        }
    }
}
