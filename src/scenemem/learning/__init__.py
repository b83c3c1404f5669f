"""How agents learn: rewards, named losses over rollouts, stages, the trainer and its checkpoints."""
