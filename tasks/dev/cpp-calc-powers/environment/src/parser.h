#pragma once

#include "calc/calc.h"
#include "lexer.h"

#include <string>
#include <vector>

namespace calc {

// Evaluates while it reads; every method takes the tokens of one level of precedence.
class Parser {
public:
    Parser(std::vector<Token> tokens, const Variables &variables);

    double parse();

private:
    double sum();
    double product();
    double power();
    double primary();
    double call(const Token &name);

    bool take(const std::string &symbol);
    void expect(const std::string &symbol);
    const Token &here() const { return tokens_[at_]; }

    std::vector<Token> tokens_;
    std::size_t at_ = 0;
    const Variables &variables_;
};

} // namespace calc
