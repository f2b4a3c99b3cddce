"""Which way a task takes to its committed version: the facts, the hazards, the costs, the choice."""
