"""What makes the scripts one suite.

In the order of the data: `catalogue` (what there is), `running` (a script in a process of its own),
`schema` (what a result is), `text` (tables of text), `comparing` (two results), `peers`,
`environments` and `turns` (other libraries, each in an environment of its own), `plots`,
`selection` and `page` (what readers see), `command` (the command line). Nothing here imports JAX.
"""
