-- | Runs a specification with Hspec, writes each example's outcome as TAP to $TAP_FILE and failures to stdout. An example is
-- called by its groups and its requirement. The TAP is written when Hspec has come to its end, so not after an early exit.
module Tap (run) where

import Control.Monad (forM_, when)
import Data.IORef
import System.Exit (ExitCode (..), exitWith)
import System.Environment (getEnv, unsetEnv)
import Test.Hspec.Core.Format
import Test.Hspec.Core.Runner
import Test.Hspec.Core.Spec (FailureReason (..), Spec)

run :: Spec -> IO ()
run spec = do
  path <- getEnv "TAP_FILE"
  unsetEnv "TAP_FILE"
  done <- newIORef []
  let note event = case event of
        ItemDone (groups, requirement) item -> modifyIORef done ((unwords (groups ++ [requirement]), itemResult item) :)
        _ -> return ()
      config = defaultConfig {configFormat = Just (\_ -> return note), configIgnoreConfigFile = True}
  _ <- runSpec spec config
  results <- reverse <$> readIORef done
  forM_ results $ \(name, result) -> when (isFailure result) $ putStrLn ("FAIL " ++ name ++ ": " ++ describe result)
  writeFile path (unlines (zipWith line [1 :: Int ..] results ++ ["1.." ++ show (length results)]))
  let failed = length (filter (isFailure . snd) results)
  exitWith (if failed == 0 then ExitSuccess else ExitFailure (100 + min 99 failed))

line :: Int -> (String, Result) -> String
line number (name, result) = case result of
  Success -> "ok " ++ rest
  Pending _ _ -> "ok " ++ rest ++ " # SKIP"
  Failure _ _ -> "not ok " ++ rest
  where
    rest = show number ++ " - " ++ unwords (words name)

isFailure :: Result -> Bool
isFailure (Failure _ _) = True
isFailure _ = False

describe :: Result -> String
describe (Failure _ reason) = unwords . words $ case reason of
  NoReason -> "fails"
  Reason text -> text
  ExpectedButGot note expected got -> maybe "" (++ ": ") note ++ "expected " ++ expected ++ ", got " ++ got
  Error note problem -> maybe "" (++ ": ") note ++ show problem
describe _ = ""
