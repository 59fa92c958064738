/** Says what differs. */
final class Check {
    private Check() {}

    static void equal(Object actual, Object expected) {
        if (!expected.equals(actual)) {
            throw new AssertionError("expected " + expected + ", got " + actual);
        }
    }
}
