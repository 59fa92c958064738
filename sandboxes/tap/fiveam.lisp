;;;; Recipe of Common Lisp: run one file of FiveAM tests, write each test's outcome as TAP to $TAP_FILE, failures to stdout.
;;;;     sbcl --noinform --no-sysinit --no-userinit --disable-debugger --load fiveam.lisp
;;;; $SWE_RL_TEST is the file. A process that ends early leaves no TAP.
(require :asdf)
(require :sb-posix)
(let ((*standard-output* (make-broadcast-stream)) (*error-output* (make-broadcast-stream)))
  (asdf:load-system :fiveam))

(defpackage :runner (:use :cl))
(in-package :runner)

(defun name-of (test) (string-downcase (symbol-name test)))

(defun cases ()
  (sort (remove-if-not (lambda (name) (typep (fiveam:get-test name) 'fiveam::test-case)) (fiveam::test-names))
        #'string< :key #'name-of))

(defun outcome (name)
  "passed, skipped or failed, and the first failure's reason"
  (let* ((fiveam:*test-dribble* (make-broadcast-stream))
         (fiveam:*on-error* nil)
         (results (fiveam:run name))
         (failure (find-if (lambda (result) (typep result 'fiveam::test-failure)) results)))
    (cond (failure (values :failed (fiveam::reason failure)))
          ((null results) (values :failed "checks nothing"))
          ((every (lambda (result) (typep result 'fiveam::test-skipped)) results) (values :skipped ""))
          (t (values :passed "")))))

(defun one-line (text)
  (format nil "~{~a~^ ~}" (remove "" (uiop:split-string text :separator '(#\Newline #\Space)) :test #'string=)))

(let ((tap-file (uiop:getenv "TAP_FILE")) (lines '()) (count 0) (failed 0))
  (sb-posix:unsetenv "TAP_FILE")
  (let ((*package* (find-package :cl-user)))
    (load (uiop:getenv "SWE_RL_TEST")))
  (dolist (name (cases))
    (multiple-value-bind (status reason) (outcome name)
      (push (format nil "~:[ok~;not ok~] ~d - ~a~:[~; # SKIP~]"
                    (eq status :failed) (incf count) (name-of name) (eq status :skipped))
            lines)
      (when (eq status :failed)
        (incf failed)
        (format t "FAIL ~a: ~a~%" (name-of name) (one-line (princ-to-string reason))))))
  (with-open-file (tap tap-file :direction :output :if-exists :supersede)
    (format tap "~{~a~%~}1..~d~%" (reverse lines) count))
  (finish-output)
  (sb-ext:exit :code (if (zerop failed) 0 (+ 100 (min 99 failed))) :abort t))
