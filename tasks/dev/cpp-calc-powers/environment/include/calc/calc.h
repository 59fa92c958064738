// Evaluates arithmetic expressions.
#pragma once

#include <cstddef>
#include <map>
#include <stdexcept>
#include <string>

namespace calc {

using Variables = std::map<std::string, double>;

// What is wrong, and at which column, counted from 1.
class Error : public std::runtime_error {
public:
    Error(const std::string &problem, std::size_t column)
        : std::runtime_error(problem + " at column " + std::to_string(column)), column_(column)
    {
    }

    std::size_t column() const { return column_; }

private:
    std::size_t column_;
};

double evaluate(const std::string &text, const Variables &variables = {});

} // namespace calc
