#lang racket/base
;; Recipe of Racket: run one module of RackUnit tests, its submodule `test` included, write each test's outcome as TAP to
;; $TAP_FILE and failures to stdout.
;;     racket rackunit.rkt TEST_FILE
;; A check outside of any test case is a test of its own, called by its place. A process that ends early leaves no TAP.
(require rackunit racket/string)

(define tap-file (getenv "TAP_FILE"))
(environment-variables-set! (current-environment-variables) #"TAP_FILE" #f)
(define lines '())
(define failed 0)

(define (record! name problem)
  (define number (add1 (length lines)))
  (set! lines (cons (format "~a ~a - ~a" (if problem "not ok" "ok") number name) lines))
  (when problem
    (set! failed (add1 failed))
    (printf "FAIL ~a: ~a\n" name problem)))

(define (describe error)
  (define infos (if (exn:test:check? error) (exn:test:check-stack error) '()))
  (define (show key)
    (for/first ([info infos] #:when (eq? (check-info-name info) key))
      (define value (check-info-value info))
      ;; A transparent struct tells how a value is to be shown; the value is its first field.
      (format "~a ~s" key (if (struct? value) (vector-ref (struct->vector value) 1) value))))
  (define shown (filter values (list (show 'expected) (show 'actual))))
  (cond [(pair? shown) (string-join shown ", ")]
        [(exn? error) (string-normalize-spaces (exn-message error))]
        [else (format "raised ~s" error)]))

(define ((recorded default-name) thunk)
  (define name (or (current-test-name) (default-name)))
  (with-handlers ([(lambda (_) #t) (lambda (error) (record! name (describe error)))])
    (thunk)
    (record! name #f)))

(define file (path->complete-path (vector-ref (current-command-line-arguments) 0)))
(parameterize ([current-test-case-around (recorded (lambda () (format "test ~a" (add1 (length lines)))))]
               [current-check-around (recorded (lambda () (format "check ~a" (add1 (length lines)))))]
               [current-command-line-arguments (vector)])
  (dynamic-require file #f)
  (define tests `(submod ,file test))
  (when (module-declared? tests #t) (dynamic-require tests #f)))

(with-output-to-file tap-file #:exists 'truncate
  (lambda ()
    (for ([line (reverse lines)]) (displayln line))
    (printf "1..~a\n" (length lines))))
(exit (if (zero? failed) 0 (+ 100 (min 99 failed))))
