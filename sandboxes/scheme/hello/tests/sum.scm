(use-modules (srfi srfi-64) (sum))

(test-begin "sum")
(test-equal "adds" 5 (add 2 3))
(test-equal "adds nothing" 2 (add 2 0))
(test-end "sum")
