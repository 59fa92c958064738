open OUnit2

let check expected got = assert_equal expected got ~printer:string_of_int

let suite =
  "sum"
  >::: [
         ("adds" >:: fun _ -> check 5 (Sum.add 2 3));
         ("adds nothing" >:: fun _ -> check 2 (Sum.add 2 0));
       ]

let () = run_test_tt_main suite
