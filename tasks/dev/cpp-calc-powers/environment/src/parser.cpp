#include "parser.h"

#include "functions.h"

#include <cmath>

namespace calc {

Parser::Parser(std::vector<Token> tokens, const Variables &variables)
    : tokens_(std::move(tokens)), variables_(variables)
{
}

double Parser::parse()
{
    double value = sum();
    if (here().kind != Kind::End)
        throw Error("unexpected " + here().text, here().column);
    return value;
}

double Parser::sum()
{
    double value = product();
    while (true) {
        if (take("+"))
            value += product();
        else if (take("-"))
            value -= product();
        else
            return value;
    }
}

double Parser::product()
{
    double value = power();
    while (true) {
        std::size_t column = here().column;
        if (take("*")) {
            value *= power();
        } else if (take("/")) {
            double divisor = power();
            if (divisor == 0)
                throw Error("division by zero", column);
            value /= divisor;
        } else {
            return value;
        }
    }
}

double Parser::power()
{
    double value = primary();
    while (take("^"))
        value = std::pow(value, primary());
    return value;
}

double Parser::primary()
{
    Token token = here();
    if (token.kind == Kind::Number) {
        ++at_;
        return token.value;
    }
    if (token.kind == Kind::Name) {
        ++at_;
        if (take("("))
            return call(token);
        auto found = variables_.find(token.text);
        if (found == variables_.end())
            throw Error("unknown variable " + token.text, token.column);
        return found->second;
    }
    if (take("(")) {
        double value = sum();
        expect(")");
        return value;
    }
    if (token.kind == Kind::End)
        throw Error("unexpected end", token.column);
    throw Error("unexpected " + token.text, token.column);
}

double Parser::call(const Token &name)
{
    std::vector<double> arguments;
    if (!take(")")) {
        do
            arguments.push_back(sum());
        while (take(","));
        expect(")");
    }
    return call_function(name, arguments);
}

bool Parser::take(const std::string &symbol)
{
    if (here().kind != Kind::Symbol || here().text != symbol)
        return false;
    ++at_;
    return true;
}

void Parser::expect(const std::string &symbol)
{
    if (!take(symbol))
        throw Error("expected " + symbol, here().column);
}

double evaluate(const std::string &text, const Variables &variables)
{
    return Parser(tokenize(text), variables).parse();
}

} // namespace calc
