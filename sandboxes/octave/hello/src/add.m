function total = add (a, b)
  total = a - b;
endfunction
