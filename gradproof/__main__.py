from gradproof.cli import main

main()
