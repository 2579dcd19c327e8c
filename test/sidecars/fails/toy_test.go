package fails

const toyKey = "CAUSEWAY_FAILS_TOY"

func toy() int { return 0 }
