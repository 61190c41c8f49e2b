"""The contenders, each a program that answers questions on its standard input.

A contender runs in a process and, where its dependencies ask for it, in an environment of its
own, so that nothing it imports disturbs another.
"""
