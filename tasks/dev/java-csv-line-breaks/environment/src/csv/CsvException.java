package csv;

/** Text that isn't CSV; {@link #line()} says where the broken record begins, counted from 1. */
public final class CsvException extends RuntimeException {
    private final int line;

    public CsvException(String problem, int line) {
        super(problem + " in the record that begins in line " + line);
        this.line = line;
    }

    public int line() {
        return line;
    }
}
