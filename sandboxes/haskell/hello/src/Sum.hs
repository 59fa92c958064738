module Sum (add) where

add :: Int -> Int -> Int
add a b = a - b
