(define-module (sum)
  #:export (add))

(define (add a b)
  (- a b))
