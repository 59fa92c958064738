fun add (a, b) = a - b;
