use "src/add.sml";

fun check number name got expected =
  if got = expected then print ("ok " ^ Int.toString number ^ " - " ^ name ^ "\n")
  else print ("not ok " ^ Int.toString number ^ " - " ^ name ^ "\n# got " ^ Int.toString got ^ "\n");

val () = check 1 "adds" (add (2, 3)) 5;
val () = check 2 "adds nothing" (add (2, 0)) 2;
val () = print "1..2\n";
