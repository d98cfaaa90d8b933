"""What ``tokenswift doctor`` looks at: one module for each kind of fact, all of them only reading.

The facts are plain values; how they are worded is the command's business.
"""
