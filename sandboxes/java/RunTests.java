// Those of java.lang, too: a class of the default package, which may be the product's, would go before them.
import java.io.IOException;
import java.io.PrintStream;
import java.lang.AssertionError;
import java.lang.Class;
import java.lang.IllegalStateException;
import java.lang.Runnable;
import java.lang.Runtime;
import java.lang.StackTraceElement;
import java.lang.String;
import java.lang.StringBuilder;
import java.lang.System;
import java.lang.Thread;
import java.lang.Throwable;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HexFormat;
import java.util.List;
import java.util.stream.Stream;

/**
 * Runs the tests of a repository and reports each.
 *
 * <p>{@code RunTests [--report FILE NONCE_FILE]} runs, in order of names, every public method without parameters whose name
 * begins with "test" of every class tests/**&#47;*Test.java, each on an instance of its own. Failures are whatever a test
 * throws; an AssertionError is a failure, anything else an error. With --report: JSON lines {"id", "status", "message"}
 * closed by {"end": n, "seal": …}; NONCE_FILE is read and removed before any test. Without: a line for each failure and
 * a summary. Exit code: 0 all passed. It isn't a sandbox: it only sees to it that leaving early can't look like success.
 */
public final class RunTests {
    private static final int MESSAGE_LIMIT = 600;
    private static volatile boolean complete;

    private record Result(String id, String status, String message) {}

    public static void main(String[] arguments) throws IOException {
        PrintStream out = System.out;
        boolean reporting = arguments.length == 3 && arguments[0].equals("--report");
        String report = reporting ? arguments[1] : null;
        String nonce = reporting ? Files.readString(Path.of(arguments[2])).trim() : null;
        if (reporting) {
            Files.delete(Path.of(arguments[2]));
        }
        List<Path> files = testFiles();
        Runnable putBack = reporting ? hide(files) : () -> {};
        // System.exit in code under test runs this hook; halt's code wins over the one that was asked for.
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            if (!complete) {
                putBack.run();
                out.println("ERROR the test process ended by an early exit");
                out.flush();
                Runtime.getRuntime().halt(1);
            }
        }));
        List<Result> results = new ArrayList<>();
        for (Path file : files) {
            runClass(file, results);
        }
        putBack.run();
        if (reporting) {
            writeReport(Path.of(report), nonce, results);
        } else {
            printSummary(out, results);
        }
        boolean good = !results.isEmpty() && results.stream().allMatch(result -> result.status.equals("passed"));
        complete = true;
        Runtime.getRuntime().halt(good ? 0 : 1);
    }

    private static List<Path> testFiles() throws IOException {
        try (Stream<Path> files = Files.walk(Path.of("tests"))) {
            return files.filter(file -> file.getFileName().toString().endsWith("Test.java")).sorted().toList();
        }
    }

    /** Takes the files away as long as code runs that could read them; the result puts them back. */
    private static Runnable hide(List<Path> files) throws IOException {
        List<byte[]> contents = new ArrayList<>();
        for (Path file : files) {
            contents.add(Files.readAllBytes(file));
            Files.delete(file);
        }
        return () -> {
            for (int i = 0; i < contents.size(); i++) {
                try {
                    Files.write(files.get(i), contents.get(i), StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE);
                } catch (IOException error) {
                    System.err.println("RunTests: " + error);
                }
            }
        };
    }

    private static void runClass(Path file, List<Result> results) {
        String name = Path.of("tests").relativize(file).toString().replaceAll("\\.java$", "").replace('/', '.');
        Method[] methods;
        try {
            methods = Class.forName(name).getMethods();
        } catch (Throwable error) {
            results.add(new Result(file.toString(), "error", describe(error)));
            return;
        }
        Arrays.sort(methods, Comparator.comparing(Method::getName));
        for (Method method : methods) {
            if (method.getName().startsWith("test") && method.getParameterCount() == 0) {
                results.add(runTest(file + "::" + method.getName(), method));
            }
        }
    }

    private static Result runTest(String id, Method method) {
        try {
            boolean isStatic = Modifier.isStatic(method.getModifiers());
            method.invoke(isStatic ? null : method.getDeclaringClass().getDeclaredConstructor().newInstance());
            return new Result(id, "passed", "");
        } catch (InvocationTargetException error) {
            Throwable cause = error.getCause();
            return new Result(id, cause instanceof AssertionError ? "failed" : "error", describe(cause));
        } catch (Throwable error) {
            return new Result(id, "error", describe(error));
        }
    }

    private static String describe(Throwable error) {
        String text = String.valueOf(error.getMessage());
        if (!(error instanceof AssertionError) || error.getMessage() == null) {
            StackTraceElement[] trace = error.getStackTrace();
            String place = trace.length == 0 ? "" : " (" + trace[0].getFileName() + ":" + trace[0].getLineNumber() + ")";
            text = error.getClass().getSimpleName() + ": " + text + place;
        }
        return text.length() > MESSAGE_LIMIT ? text.substring(0, MESSAGE_LIMIT) : text;
    }

    private static void printSummary(PrintStream out, List<Result> results) {
        long passed = results.stream().filter(result -> result.status.equals("passed")).count();
        for (Result result : results) {
            if (!result.status.equals("passed")) {
                String label = result.status.equals("failed") ? "FAIL " : "ERROR ";
                out.println(label + result.id.substring(result.id.indexOf("::") + 2) + ": " + result.message);
            }
        }
        long bad = results.size() - passed;
        out.println(bad == 0 ? "ok " + passed + " passed" : bad + " failed, " + passed + " passed");
        out.flush();
    }

    private static void writeReport(Path path, String nonce, List<Result> results) throws IOException {
        StringBuilder text = new StringBuilder();
        for (Result result : results) {
            text.append("{\"id\": ").append(quote(result.id)).append(", \"status\": ").append(quote(result.status));
            text.append(", \"message\": ").append(quote(result.message)).append("}\n");
        }
        String seal = seal(nonce + "\n" + text);
        text.append("{\"end\": ").append(results.size()).append(", \"seal\": ").append(quote(seal)).append("}\n");
        Files.write(path, text.toString().getBytes(StandardCharsets.UTF_8));
    }

    private static String seal(String text) {
        try {
            byte[] digest = MessageDigest.getInstance("SHA-256").digest(text.getBytes(StandardCharsets.UTF_8));
            return HexFormat.of().formatHex(digest);
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException(error);
        }
    }

    private static String quote(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char letter : text.toCharArray()) {
            if (letter < 0x20 || letter == '"' || letter == '\\' || letter > 0x7e) {
                quoted.append(String.format("\\u%04x", (int) letter));
            } else {
                quoted.append(letter);
            }
        }
        return quoted.append('"').toString();
    }
}
