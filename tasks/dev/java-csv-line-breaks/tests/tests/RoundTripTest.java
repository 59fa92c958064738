import csv.CsvException;
import csv.CsvFormat;
import csv.CsvReader;
import csv.CsvTable;
import csv.CsvWriter;
import java.util.ArrayList;
import java.util.List;

public final class RoundTripTest {
    private static List<List<String>> read(String text) {
        return new CsvReader(CsvFormat.COMMA).read(text);
    }

    private static void refuse(String text, int line) {
        try {
            read(text);
        } catch (CsvException error) {
            Check.equal(error.line(), line);
            return;
        }
        throw new AssertionError("accepted: " + text);
    }

    public void testLineBreakInQuotes() {
        Check.equal(read("\"a\nb\",c\nd,e\n"), List.of(List.of("a\nb", "c"), List.of("d", "e")));
        Check.equal(read("\"a\r\nb\"\r\nc\r\n"), List.of(List.of("a\r\nb"), List.of("c")));
        Check.equal(read("\"a\n\nb\"\n"), List.of(List.of("a\n\nb")));
    }

    public void testDoubledQuotes() {
        Check.equal(read("\"say \"\"hi\"\"\",x"), List.of(List.of("say \"hi\"", "x")));
        Check.equal(read("\"\"\"\"\n"), List.of(List.of("\"")));
    }

    public void testQuoteInsideAnUnquotedField() {
        Check.equal(read("5\" pipe,3\n"), List.of(List.of("5\" pipe", "3")));
        Check.equal(read("a\"b\"\"c\n"), List.of(List.of("a\"b\"\"c")));
    }

    public void testTextAfterAClosingQuote() {
        refuse("\"a\"b,c\n", 1);
        refuse("ok\n\"a\" ,c\n", 2);
    }

    public void testLineOfABrokenRecord() {
        refuse("\"a\nb\"\nc\n\"d\ne", 4);
        refuse("\n\n\"open\n\n", 3);
        refuse("\"a\r\nb\"\r\n\"x\"y\r\n", 3);
    }

    public void testEmptyFields() {
        Check.equal(read("\"\"\n,\n\"\",x"), List.of(List.of(""), List.of("", ""), List.of("", "x")));
        Check.equal(read(""), List.of());
        Check.equal(read("\n\r\n"), List.of());
    }

    public void testWriterQuotesWhatNeedsIt() {
        String text = CsvWriter.write(List.of(List.of("a\nb", "c\rd", "e\"f", "g;h")), CsvFormat.COMMA);
        Check.equal(text, "\"a\nb\",\"c\rd\",\"e\"\"f\",g;h\n");
        Check.equal(CsvWriter.write(List.of(List.of("")), CsvFormat.COMMA), "\"\"\n");
        Check.equal(CsvWriter.write(List.of(List.of("", "")), CsvFormat.COMMA), ",\n");
    }

    public void testLoneCarriageReturnIsOrdinary() {
        Check.equal(read("a\rb,c\n"), List.of(List.of("a\rb", "c")));
    }

    public void testRoundTrip() {
        String[] pieces = {"", "a", "\"", "\n", "\r\n", ",", ";", " ", "\"\"", "\r"};
        List<List<String>> rows = new ArrayList<>();
        for (String first : pieces) {
            for (String second : pieces) {
                rows.add(List.of(first + second));
                rows.add(List.of(first, second + "x" + first));
            }
        }
        for (CsvFormat format : List.of(CsvFormat.COMMA, CsvFormat.SEMICOLON)) {
            Check.equal(new CsvReader(format).read(CsvWriter.write(rows, format)), rows);
        }
    }

    public void testTableWithNotes() {
        CsvTable table = CsvTable.parse("id,note\n1,\"first\nsecond\"\n2,x\n", CsvFormat.COMMA);
        Check.equal(table.get(0, "note"), "first\nsecond");
        Check.equal(table.get(1, "id"), "2");
    }
}
