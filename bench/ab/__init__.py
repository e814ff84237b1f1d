"""Two sides measured alternately by live worker processes, and the verdicts that rest on it."""
