#include "add.h"
#include "tap.h"

TEST(adds) { CHECK_INT(add(2, 3), 5); }
TEST(adds_nothing) { CHECK_INT(add(2, 0), 2); }
