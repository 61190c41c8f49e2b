"""The log of a step: the lines that its code prints and logs, from the process to stored chunks.

A line goes through `capture` to the log of its try, is redacted, numbered and added to a chunk, and
is first written to a file that outlives the process. The chunk is stored by the statement that
reports the try, or by a thread (`worker/step_logs.py`) if the try takes longer.
"""
