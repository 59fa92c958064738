#include "calc/calc.h"
#include "tap.h"

#include <cmath>

static void check_value(const char *text, double expected)
{
    double actual = calc::evaluate(text, {{"x", 3}, {"y_2", 0.5}});
    if (std::fabs(actual - expected) > 1e-9)
        TAP_FAIL("%s: expected %g, got %g", text, expected, actual);
}

static void check_error(const char *text, int column)
{
    try {
        double value = calc::evaluate(text);
        TAP_FAIL("%s: expected an error, got %g", text, value);
    } catch (const calc::Error &error) {
        CHECK_INT(error.column(), column);
    }
}

TEST(products_before_sums)
{
    check_value("1 + 2 * 3 - 8 / 4", 5);
    check_value("(1 + 2) * 3", 9);
    check_value("10 - 4 - 3", 3);
}

TEST(negative_numbers)
{
    check_value("-3 + 5", 2);
    check_value("2 * -3", -6);
    check_value("4 - -1", 5);
}

TEST(names_and_functions)
{
    check_value("2 * x + y_2", 6.5);
    check_value("max(1, x, 2) + sqrt(16) + abs(-2)", 9);
}

TEST(powers)
{
    check_value("2 ^ 3 * 2", 16);
    check_value("(1 + 1) ^ 3", 8);
}

TEST(errors_have_a_column)
{
    check_error("1 + ?", 5);
    check_error("1 +", 4);
    check_error("(1 + 2", 7);
    check_error("1 / 0", 3);
    check_error("2 z", 3);
    check_error("1.2.3", 1);
    check_error("foo(1)", 1);
}
