module test_sum;

import sum;

@("adds") unittest
{
    assert(add(2, 3) == 5);
}

@("adds nothing") unittest
{
    assert(add(2, 0) == 2);
}
