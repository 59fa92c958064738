#lang racket/base
(require rackunit "../src/sum.rkt")

(test-equal? "adds" (add 2 3) 5)
(test-equal? "adds nothing" (add 2 0) 2)
