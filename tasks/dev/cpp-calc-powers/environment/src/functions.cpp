#include "functions.h"

#include "calc/calc.h"

#include <algorithm>
#include <cmath>

namespace calc {

double call_function(const Token &name, const std::vector<double> &arguments)
{
    bool takes_many = name.text == "min" || name.text == "max";
    bool takes_one = name.text == "sqrt" || name.text == "abs";
    if (!takes_many && !takes_one)
        throw Error("unknown function " + name.text, name.column);
    if (arguments.empty() || (takes_one && arguments.size() != 1))
        throw Error("wrong number of arguments for " + name.text, name.column);
    if (name.text == "sqrt")
        return std::sqrt(arguments[0]);
    if (name.text == "abs")
        return std::fabs(arguments[0]);
    if (name.text == "min")
        return *std::min_element(arguments.begin(), arguments.end());
    return *std::max_element(arguments.begin(), arguments.end());
}

} // namespace calc
