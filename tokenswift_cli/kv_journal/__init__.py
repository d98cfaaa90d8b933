"""The key-value journal of a run: the cache's rows on disk, one immutable file per chunk, so that a resume
reads them back instead of computing them again."""
