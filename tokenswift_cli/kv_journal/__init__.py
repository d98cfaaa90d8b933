"""The key-value journal of a run: the cache's rows on disk, in immutable files that follow the chunks.

A resume reads them back instead of computing them again."""
