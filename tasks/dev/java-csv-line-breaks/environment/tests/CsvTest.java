import csv.CsvException;
import csv.CsvFormat;
import csv.CsvReader;
import csv.CsvTable;
import csv.CsvWriter;
import java.util.List;

public final class CsvTest {
    private static List<List<String>> read(String text) {
        return new CsvReader(CsvFormat.COMMA).read(text);
    }

    public void testPlainRecords() {
        Check.equal(read("a,b\nc,d\n"), List.of(List.of("a", "b"), List.of("c", "d")));
    }

    public void testLastLineNeedsNoEnd() {
        Check.equal(read("a,b\r\nc,"), List.of(List.of("a", "b"), List.of("c", "")));
    }

    public void testQuotedSeparator() {
        Check.equal(read("\"a,b\",c"), List.of(List.of("a,b", "c")));
    }

    public void testEmptyLinesAreSkipped() {
        Check.equal(read("a\n\nb\n"), List.of(List.of("a"), List.of("b")));
    }

    public void testOpenQuoteIsAnError() {
        try {
            read("a\n\"b\n");
        } catch (CsvException error) {
            Check.equal(error.line(), 2);
            return;
        }
        throw new AssertionError("an open quote was accepted");
    }

    public void testWriteQuotesTheSeparator() {
        Check.equal(CsvWriter.write(List.of(List.of("a;b", "c")), CsvFormat.SEMICOLON), "\"a;b\";c\n");
    }

    public void testTableByColumn() {
        CsvTable table = CsvTable.parse("name,age\nada,36\nbo\n", CsvFormat.COMMA);
        Check.equal(table.size(), 2);
        Check.equal(table.get(0, "age"), "36");
        Check.equal(table.get(1, "age"), "");
    }
}
