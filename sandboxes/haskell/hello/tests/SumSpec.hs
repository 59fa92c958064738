module SumSpec (spec) where

import Sum (add)
import Test.Hspec

spec :: Spec
spec = do
  it "adds" $ add 2 3 `shouldBe` 5
  it "adds nothing" $ add 2 0 `shouldBe` 2
