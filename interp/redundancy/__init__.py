"""Which heads do the same thing, and which can be done without?

seen         what heads did at some positions, and what they did there if it were shuffled
similarity   how alike two heads' patterns and outputs are
spaces       how much of the residual stream two heads share, by their weights
tables       one line a pair of heads and null; nearest twins; agreement of measures
clusters     groups of heads that are alike, how many, how stable, and a map of them
importance   how much each head matters, as far as cheap estimates can tell
ranking      whether two ways of scoring heads rank them alike
pruning      how many heads can go, one after another
interactions which heads stand in for each other, and which can share one pattern
self_repair  what later layers restore of what a head did
"""
