(ns sum-test
  (:require [clojure.test :refer [deftest is]]
            [sum :refer [add]]))

(deftest adds
  (is (= 5 (add 2 3))))

(deftest adds-nothing
  (is (= 2 (add 2 0))))
