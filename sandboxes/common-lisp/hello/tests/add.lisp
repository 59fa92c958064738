(load "src/add.lisp")

(fiveam:test adds
  (fiveam:is (= 5 (add 2 3))))

(fiveam:test adds-nothing
  (fiveam:is (= 2 (add 2 0))))
