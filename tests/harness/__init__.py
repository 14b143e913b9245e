"""Test harness: fault injection, fuzzing, hostile requests and extreme numerics."""
