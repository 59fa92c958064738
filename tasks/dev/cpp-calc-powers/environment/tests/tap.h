/* Tests that report in TAP: each TEST registers itself, and runs in a process of its own so that a crash is one failure.

       TEST(adds_two_numbers) { CHECK_INT(add(1, 2), 3); }

   TAP goes to the file that TAP_FILE names, if it is set; a line for each failure goes to the standard output. */
#ifndef TAP_H
#define TAP_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct tap_test {
    const char *name;
    void (*run)(void);
};

static struct tap_test tap_tests[200];
static int tap_count;
static const char *tap_name;

#define TEST(test)                                                            \
    static void test(void);                                                   \
    __attribute__((constructor)) static void register_##test(void)            \
    {                                                                         \
        tap_tests[tap_count].name = #test;                                    \
        tap_tests[tap_count++].run = test;                                    \
    }                                                                         \
    static void test(void)

#define TAP_FAIL(...)                                                         \
    do {                                                                      \
        printf("FAIL %s: ", tap_name);                                        \
        printf(__VA_ARGS__);                                                  \
        printf(" (line %d)\n", __LINE__);                                     \
        fflush(stdout);                                                       \
        _exit(1);                                                             \
    } while (0)

#define CHECK(condition)                                                      \
    do {                                                                      \
        if (!(condition))                                                     \
            TAP_FAIL("%s is false", #condition);                              \
    } while (0)

#define CHECK_INT(actual, expected)                                           \
    do {                                                                      \
        long long tap_actual = (long long)(actual), tap_expected = (long long)(expected); \
        if (tap_actual != tap_expected)                                       \
            TAP_FAIL("%s: expected %lld, got %lld", #actual, tap_expected, tap_actual); \
    } while (0)

#define CHECK_STR(actual, expected)                                           \
    do {                                                                      \
        const char *tap_actual = (actual), *tap_expected = (expected);        \
        if (tap_actual == NULL || strcmp(tap_actual, tap_expected) != 0)      \
            TAP_FAIL("%s: expected \"%s\", got \"%s\"", #actual, tap_expected, tap_actual ? tap_actual : "(null)"); \
    } while (0)

/* A random word, which only a test that ran to its end hands over: no exit on the way is a pass. */
static unsigned long long tap_word;

static int tap_run(const struct tap_test *test)
{
    unsigned long long word = 0;
    int status = 0, ends[2];
    pid_t child;

    fflush(stdout);
    tap_name = test->name;
    if (pipe(ends) != 0 || fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0)
        return 0;
    child = fork();
    if (child == 0) {
        alarm(10);
        test->run();
        fflush(stdout);
        _exit(write(ends[1], &tap_word, sizeof tap_word) != sizeof tap_word);
    }
    close(ends[1]);
    if (child < 0 || waitpid(child, &status, 0) != child || read(ends[0], &word, sizeof word) < 0)
        word = 0;
    close(ends[0]);
    if (WIFSIGNALED(status))
        printf("FAIL %s: killed by signal %d\n", test->name, WTERMSIG(status));
    else if (word != tap_word && WEXITSTATUS(status) != 1)
        printf("FAIL %s: its process ended early with code %d\n", test->name, WEXITSTATUS(status));
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 && word == tap_word;
}

/* The report is opened last: a buffer or a descriptor of it that a test's process inherits could be written there. */
int main(void)
{
    static int passed[200];
    const char *path = getenv("TAP_FILE");
    FILE *report = fopen("/dev/urandom", "rb");
    int failed = 0;

    if (!report || fread(&tap_word, sizeof tap_word, 1, report) != 1)
        return 1;
    fclose(report);
    for (int i = 0; i < tap_count; i++) {
        passed[i] = tap_run(&tap_tests[i]);
        failed += !passed[i];
    }
    report = path ? fopen(path, "w") : NULL;
    if (report) {
        for (int i = 0; i < tap_count; i++)
            fprintf(report, "%s %d - %s\n", passed[i] ? "ok" : "not ok", i + 1, tap_tests[i].name);
        fprintf(report, "1..%d\n", tap_count);
        fclose(report);
    }
    return failed ? 100 + (failed < 99 ? failed : 99) : 0;
}

#endif
