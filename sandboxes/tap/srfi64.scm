;; Recipe of Scheme: run one test file with SRFI 64, write each test's outcome as TAP to $TAP_FILE and failures to stdout.
;;     guile --no-auto-compile -L src srfi64.scm TEST_FILE
;; A test's id is its groups and its name. The TAP is written once the whole file has been loaded: not after an early exit.
(use-modules (srfi srfi-64) (ice-9 format))

(define tap-file (getenv "TAP_FILE"))
(unsetenv "TAP_FILE")
(define test-file (cadr (command-line)))
(define lines '())
(define failed 0)

(define (record! runner)
  (let* ((kind (test-result-kind runner))
         (name (string-join `(,@(test-runner-group-path runner) ,(test-runner-test-name runner)) " "))
         (value (lambda (key) (test-result-ref runner key 'none)))
         (number (1+ (length lines))))
    (set! lines
      (cons (format #f "~a ~d - ~a~a"
                    (if (memq kind '(fail xpass)) "not ok" "ok") number name (if (eq? kind 'skip) " # SKIP" ""))
            lines))
    (when (memq kind '(fail xpass))
      (set! failed (1+ failed))
      (format #t "FAIL ~a: ~a~%" name
              (cond ((not (eq? (value 'actual-error) 'none)) (format #f "raised ~s" (value 'actual-error)))
                    ((not (eq? (value 'expected-value) 'none))
                     (format #f "expected ~s, got ~s" (value 'expected-value) (value 'actual-value)))
                    (else "is false"))))))

(let ((runner (test-runner-null)))
  (test-runner-on-test-end! runner record!)
  (test-runner-current runner)
  (load (string-append (getcwd) "/" test-file)))

(call-with-output-file tap-file
  (lambda (port) (format port "~a~%1..~d~%" (string-join (reverse lines) "\n") (length lines))))
(exit (if (zero? failed) 0 (+ 100 (min 99 failed))))
