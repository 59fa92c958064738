%!test # adds
%! assert (add (2, 3), 5)

%!test # adds nothing
%! assert (add (2, 0), 2)
