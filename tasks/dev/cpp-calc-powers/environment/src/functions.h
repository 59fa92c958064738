#pragma once

#include "lexer.h"

#include <vector>

namespace calc {

// The value of the function that `name` names. Raises Error for an unknown one, and for a wrong number of arguments.
double call_function(const Token &name, const std::vector<double> &arguments);

} // namespace calc
