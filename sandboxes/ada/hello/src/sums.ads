package Sums is
   function Add (A, B : Integer) return Integer;
end Sums;
