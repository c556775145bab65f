"""What `import offpolicy` offers to Python programs and notebooks; `offpolicy/__init__.py` names it."""
