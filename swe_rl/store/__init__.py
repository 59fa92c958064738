"""Where rollouts and policies meet: a SQL index and checksummed files beside it. The two loops know only this."""
