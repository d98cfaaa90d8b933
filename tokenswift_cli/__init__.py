"""TokenSwift: ultra-long text from your own language model, fast, exact, and never lost."""

__version__ = "0.1.0"
