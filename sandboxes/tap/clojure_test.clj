;; Recipe of Clojure: run the tests of one namespace, write each test's outcome as TAP to $TAP_FILE and failures to stdout.
;;     java -cp ...:src:test clojure.main clojure_test.clj TEST_FILE
;; A process that ends early leaves no TAP.
(ns clojure-test
  (:require [clojure.string :as string]
            [clojure.test :as test]))

(def ^:dynamic *problems* nil)

(defn describe [{:keys [message expected actual]}]
  (string/replace (str (when message (str message ": "))
                       (if (and (seq? actual) (= 'not (first actual)))
                         (pr-str actual)
                         (str "expected " (pr-str expected) ", got "
                              (if (instance? Throwable actual) (str actual) (pr-str actual)))))
                  #"\s+" " "))

(defn report [event]
  (when (#{:fail :error} (:type event)) (swap! *problems* conj (describe event)))
  (when (= :pass (:type event)) (swap! *problems* conj nil)))

(defn outcome [variable]
  (binding [*problems* (atom []) test/report report]
    (test/test-vars [variable])
    (if (empty? @*problems*) "asserts nothing" (first (remove nil? @*problems*)))))

(defn tests-of [file]
  (let [before (set (all-ns))]
    (load-file file)
    (sort-by (juxt (comp str :ns meta) (comp :line meta))
             (for [space (remove before (all-ns)), variable (vals (ns-interns space)) :when (:test (meta variable))]
               variable))))

(let [file (System/getenv "SWE_RL_TEST")
      lines (doall
             (for [[index variable] (map-indexed vector (tests-of file))
                   :let [name (:name (meta variable)), problem (outcome variable)]]
               (do (when problem (println (str "FAIL " name ": " problem)))
                   (str (if problem "not ok " "ok ") (inc index) " - " name))))
      failed (count (filter #(string/starts-with? % "not") lines))]
  (spit (System/getenv "TAP_FILE") (str (string/join "\n" lines) "\n1.." (count lines) "\n"))
  (flush)
  (.halt (Runtime/getRuntime) (if (zero? failed) 0 (+ 100 (min 99 failed)))))
