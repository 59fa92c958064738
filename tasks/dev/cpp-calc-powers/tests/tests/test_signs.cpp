#include "calc/calc.h"
#include "tap.h"

#include <cmath>

static void check_value(const char *text, double expected)
{
    double actual = 0;
    try {
        actual = calc::evaluate(text, {{"x", 3}});
    } catch (const calc::Error &error) {
        TAP_FAIL("%s: expected %g, got: %s", text, expected, error.what());
    }
    if (std::fabs(actual - expected) > 1e-12)
        TAP_FAIL("%s: expected %g, got %g", text, expected, actual);
}

static void check_error(const char *text, int column)
{
    try {
        double value = calc::evaluate(text, {{"x", 3}});
        TAP_FAIL("%s: expected an error, got %g", text, value);
    } catch (const calc::Error &error) {
        CHECK_INT(error.column(), column);
    }
}

TEST(a_power_binds_more_tightly_than_a_sign)
{
    check_value("-2 ^ 2", -4);
    check_value("-2^2 + 5", 1);
    check_value("1 - 2 ^ 2", -3);
    check_value("2 * -x ^ 2", -18);
    check_value("(-2) ^ 2", 4);
}

TEST(powers_group_from_the_right)
{
    check_value("2 ^ 3 ^ 2", 512);
    check_value("2 ^ 2 ^ 0 ^ 5", 2);
    check_value("(2 ^ 3) ^ 2", 64);
}

TEST(an_exponent_may_have_signs)
{
    check_value("2 ^ -x", 0.125);
    check_value("2 ^ -1", 0.5);
    check_value("2 ^ --2", 4);
    check_value("2 ^ -3 ^ 2", std::pow(2, -9));
    check_value("2 ^ -2 * 8", 2);
}

TEST(anything_may_have_a_sign)
{
    check_value("-x", -3);
    check_value("-(1 + 2)", -3);
    check_value("-sqrt(16)", -4);
    check_value("+4", 4);
    check_value("- 3", -3);
    check_value("6 / -x", -2);
}

TEST(signs_may_follow_each_other)
{
    check_value("3 - - 1", 4);
    check_value("--3", 3);
    check_value("-+-3", 3);
    check_value("3--1", 4);
    check_value("2 * - - 3", 6);
}

TEST(arguments_may_have_signs)
{
    check_value("max(-x, -5)", -3);
    check_value("min(1, - 2 ^ 2)", -4);
}

TEST(differences_stay_differences)
{
    check_value("4 - -1", 5);
    check_value("x -1", 2);
    check_value("x - 1", 2);
    check_value("(1)-2", -1);
    check_value("10 - 4 - 3", 3);
}

TEST(errors_still_name_the_column)
{
    check_error("3 -", 4);
    check_error("-*2", 2);
    check_error("2 ^ ^ 3", 5);
    check_error("2 ^", 4);
    check_error("-", 2);
    check_error("1 / -0", 3);
}
