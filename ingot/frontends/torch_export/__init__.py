"""Importing what torch.export made: a .pt2 file, or a torch module in this process."""
