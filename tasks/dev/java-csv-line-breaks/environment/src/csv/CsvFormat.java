package csv;

/** How fields are told apart. A field in double quotes may hold the separator; "" inside stands for one quote. */
public record CsvFormat(char separator) {
    public static final CsvFormat COMMA = new CsvFormat(',');
    public static final CsvFormat SEMICOLON = new CsvFormat(';');

    public CsvFormat {
        if (separator == '"' || separator == '\n' || separator == '\r') {
            throw new IllegalArgumentException("not a separator: " + (int) separator);
        }
    }

    /** The field as it's written: in quotes if it has to be. */
    String quote(String field) {
        if (field.indexOf(separator) < 0) {
            return field;
        }
        return '"' + field + '"';
    }
}
